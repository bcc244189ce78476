"""What is kept in MLflow: runs, their artifacts, and what a compile tells as it goes."""
