"""`python -m baton.simulation.workers`: simulated workers in this process."""

from baton.simulation.workers.app import main

if __name__ == "__main__":
    main(prog_name="python -m baton.simulation.workers")
