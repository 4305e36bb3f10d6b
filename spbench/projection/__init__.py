"""What a case would cost on machines that are not at hand: work, clusters, times, advice."""
