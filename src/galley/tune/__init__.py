"""The cheapest settings of a model that keep a goal on recorded traffic, found by measuring."""
