"""What measures speed: the engine alone and through Parley, side by side in one run."""
