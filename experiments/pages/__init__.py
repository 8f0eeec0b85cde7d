"""Tables, pictures, cards and the figures of the paper, from the points in results/."""
