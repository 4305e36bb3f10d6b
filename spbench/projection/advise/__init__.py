"""What is said of cases on clusters: projections, recommendations, capacities."""
