"""Being here makes this folder importable from all tests: zoo, zoo_model, fakes."""
