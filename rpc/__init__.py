"""Between processes: conversion, server shell, health, drain, status codes."""
