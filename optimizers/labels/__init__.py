"""What training and demonstrations learn from: annotations, teachers, and the examples they make."""
