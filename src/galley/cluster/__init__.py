"""Several replicas of a model: which one gets a request, and replicas on other machines."""
