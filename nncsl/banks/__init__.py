"""Looking into a feature bank from outside a run: what it holds, whether it is whole, its rows, its neighbors."""
