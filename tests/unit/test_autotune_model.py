"""The Gaussian process: its gradient, its predictions, and that settings act separately."""

import numpy as np
import pytest
from scipy.optimize import approx_fprime

from hvdtune.autotune.search import model

GROUPS = [[0], [1], [2, 3]]


def cloud(count: int, seed: int = 0) -> np.ndarray:
    points = np.random.default_rng(seed).random((count, 4))
    points[:, 3] = points[:, 3] >= 0.5
    return points


def separate(points: np.ndarray) -> np.ndarray:
    return np.sin(3 * points[:, 0]) + (points[:, 1] - 0.3) ** 2 * 4 - 0.8 * points[:, 3]


def test_the_gradient_is_that_of_the_loss() -> None:
    points, rng = cloud(15), np.random.default_rng(1)
    squares = np.stack([np.subtract.outer(column, column) ** 2 for column in points.T])
    y, errors = rng.standard_normal(15), np.full(15, 0.01)
    theta = np.log([0.2, 0.3, 0.1, 0.4, 0.3, 0.5, 0.6, 0.7, 0.01])

    def value(at: np.ndarray) -> float:
        return model.loss(at, squares, y, errors, GROUPS)[0]

    found = model.loss(theta, squares, y, errors, GROUPS)[1]
    assert found == pytest.approx(approx_fprime(theta, value, 1e-6), abs=1e-3)


def test_what_was_measured_is_predicted_and_less_is_known_far_away() -> None:
    points = cloud(12)
    fitted = model.fit(points, separate(points), np.full(12, 1e-6), GROUPS)
    means, deviations = fitted.predict(points)
    assert means == pytest.approx(separate(points), abs=0.05)
    far = np.array([[3.0, -2.0, 3.0, 1.0]])
    assert fitted.predict(far)[1][0] > 3 * deviations.max()


def test_errors_make_measurements_count_less() -> None:
    points = np.array([[0.5, 0.5, 0.5, 0.0]] * 2 + [[0.1, 0.9, 0.2, 1.0]])
    fitted = model.fit(points, np.array([0.0, 1.0, -1.0]), np.array([1e-4, 1.0, 1e-4]), GROUPS)
    assert abs(fitted.predict(points[:1])[0][0]) < 0.1


def test_what_a_setting_does_holds_where_another_was_not_tried_with_it() -> None:
    # One setting changed at a time; how two act together has to be inferred.
    centre = np.array([0.5, 0.5, 0.5, 0.0])
    points = [centre]
    for at, places in ((0, (0.1, 0.3, 0.8)), (1, (0.1, 0.3, 0.9)), (3, (1.0,))):
        for place in places:
            points.append(centre.copy())
            points[-1][at] = place
    known = np.array(points)
    fitted = model.fit(known, separate(known), np.full(len(known), 1e-5), GROUPS)
    corner = np.array([[0.1, 0.3, 0.5, 1.0]])
    assert fitted.predict(corner)[0][0] == pytest.approx(separate(corner)[0], abs=0.4)
    # It is no better than the best one measured alone, unless effects add up.
    assert separate(corner)[0] < separate(known).min() - 0.5


def test_one_setting_is_enough() -> None:
    line = np.linspace(0, 1, 7)[:, None]
    fitted = model.fit(line, line[:, 0] ** 2, np.full(7, 1e-6), [[0]])
    assert fitted.predict(np.array([[0.4]]))[0][0] == pytest.approx(0.16, abs=0.03)
