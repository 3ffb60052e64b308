"""What the numbers say: findings, comparisons, suggestions."""
