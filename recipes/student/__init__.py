"""How a student of a quarter of the demo model's size is made: `python -m recipes.student.train OUT`."""
