"""How many measurements are clean is said in the same words everywhere."""

from __future__ import annotations

from tunesmith.display.noise import clean_share, noise_remark


def test_advice_is_given_only_if_few_are_clean() -> None:
    assert noise_remark(790, 2080, "Wait") == "790 of 2080 measurements are clean (38%): the others were disturbed by other processes. Wait"
    assert noise_remark(3, 4, "Wait") == "3 of 4 measurements are clean (75%)"
    assert noise_remark(1, 1, "Wait") == "1 of 1 measurement is clean (100%)"
    assert noise_remark(0, 0, "Wait") == ""
    assert noise_remark(3, 4, "Wait", "the best is one of them").endswith(
        " were disturbed by other processes; the best is one of them. Wait"
    )
    assert [clean_share(3, 8), clean_share(0, 0)] == ["38%", "-"]
