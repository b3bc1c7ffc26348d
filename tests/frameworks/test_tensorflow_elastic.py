"""An elastic job that trains with TensorFlow, with a driver that the test plays."""

from __future__ import annotations

import pytest

pytest.importorskip("tensorflow")

from rank_programs import elastic_tensorflow_jobs
from support.elastic_job import ElasticJob, lose_gain_and_let_go


def test_a_job_loses_gains_and_lets_go_processes():
    with ElasticJob(elastic_tensorflow_jobs.count) as job:
        lose_gain_and_let_go(job)
        early = next(line for line in job.lines("p4") if line["what"] == "early")
        assert "before the elastic function" in early["error"]
