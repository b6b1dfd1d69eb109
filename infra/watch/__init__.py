"""What is watched: every metric of the code, and the dashboards that show them."""
