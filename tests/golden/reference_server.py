"""Independent Adam and mean, one scalar at a time in double precision, nothing of fedpart."""

import math


def mean_pseudo_gradient(deltas):
    """Minus the mean of the clients' deltas, a list of equally long lists."""
    return [-sum(column) / len(deltas) for column in zip(*deltas, strict=True)]


class Adam:
    """Kingma and Ba 2015, algorithm 1, for a list of scalars with one common step counter."""

    def __init__(self, values, lr, eps):
        self.w, self.lr, self.eps, self.t = list(values), lr, eps, 0
        self.m, self.v = [0.0] * len(values), [0.0] * len(values)

    def step(self, gradient):
        """t += 1; m, v; bias-corrected step."""
        self.t += 1
        for i, g in enumerate(gradient):
            self.m[i] = 0.9 * self.m[i] + 0.1 * g
            self.v[i] = 0.999 * self.v[i] + 0.001 * g * g
            m_hat = self.m[i] / (1 - 0.9**self.t)
            v_hat = self.v[i] / (1 - 0.999**self.t)
            self.w[i] -= self.lr * m_hat / (math.sqrt(v_hat) + self.eps)


# Per round: partition -> the deltas that clients sent. Partition 0 is skipped in round 2.
ROUNDS = (
    {0: [[0.5, -0.25], [0.3, 0.05]], 1: [[-0.2, 0.4, 0.1]]},
    {1: [[0.1, -0.3, 0.2], [-0.5, -0.1, 0.4]]},
    {0: [[-0.1, 0.6]], 1: [[0.05, 0.2, -0.6], [0.15, 0.0, 0.2], [0.1, -0.5, 0.1]]},
)
START = {0: [1.0, -2.0], 1: [0.5, -0.5, 0.0]}


def trajectory(lr=0.1, eps=1e-8):
    """Values of both partitions after every round, and their step counters at the end."""
    optimisers = {j: Adam(values, lr, eps) for j, values in START.items()}
    path = []
    for sent in ROUNDS:
        for j, deltas in sent.items():
            optimisers[j].step(mean_pseudo_gradient(deltas))
        path.append({j: list(o.w) for j, o in optimisers.items()})
    return path, {j: o.t for j, o in optimisers.items()}


if __name__ == "__main__":
    print(mean_pseudo_gradient(ROUNDS[0][0]))
    values, steps = trajectory()
    for after in values:
        print({j: [round(x, 7) for x in w] for j, w in after.items()})
    print(steps)
