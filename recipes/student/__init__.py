"""The recipe of a student of a quarter of the demo model's size: `python -m recipes.student.train OUT`."""
