"""Evaluation in batches: the same answers as at once, and nothing of a batch left when the next one is computed."""

import gc
import weakref

import numpy as np
import pytest
import torch

from nncsl import evaluation, methods
from nncsl.methods.base import head_logits
from nncsl.passes import inference_batch


@pytest.fixture
def evaluated(small, make_run):
    """A method, images of three batches and a bit, and a function that evaluates them with an answer."""
    run = make_run(small("network.width=64", "network.hidden=64"))
    method = methods.build(run.config, run.source.num_classes).to(run.device)
    size = inference_batch(method.network, run.config.views.large.size)
    ids = np.arange(3 * size + 1)
    assert len(ids) < len(run.source.train)

    def evaluate(answer, ids=ids):
        return evaluation.answers(method, run.source.train, ids, run.config.views, run.device, answer)

    return run, method, ids, evaluate


def test_batches_answer_as_all_images_at_once(evaluated):
    run, method, ids, evaluate = evaluated
    found = evaluate(head_logits)
    method.eval()
    with torch.no_grad():
        images = evaluation.plain_images(run.source.train, ids, run.config.views, run.device)
        wanted = head_logits(method, images).cpu()
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


def test_no_batchs_answer_is_kept_while_the_next_is_computed(evaluated):
    """Small tensors kept among large ones that come and go leave holes in the heap: up to 40 MB on CIFAR-10."""
    *_, evaluate = evaluated
    earlier = []

    def answer(method, images):
        gc.collect()
        assert not any(kept() is not None for kept in earlier)
        given = head_logits(method, images)
        earlier.append(weakref.ref(given))
        return given

    evaluate(answer)
    assert len(earlier) == 4


def test_no_images_have_no_answers(evaluated):
    *_, evaluate = evaluated
    assert evaluate(head_logits, np.arange(0)).shape == (0, 10)
