"""What quantisation costs: a model beside another that stands for the truth, on the same tokens."""
