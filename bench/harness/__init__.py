"""Parts of bench/compare.py. Standard library only, but for the plot (matplotlib)."""
