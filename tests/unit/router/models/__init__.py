"""Tests of several models behind one router."""
