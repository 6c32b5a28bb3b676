"""Fair share over time, and what is said to who asks why."""

from gpuguard.scheduler.fairshare import FairShare
from gpuguard.scheduler.settings import HOUR, Settings
from gpuguard.scheduler.usage import Holder

ANN, BOB, EVE, NEW = (
    Holder("lab/vision", "ann"),
    Holder("lab/speech", "bob"),
    Holder("lab/speech", "eve"),
    Holder("x", "n"),
)


def filled() -> FairShare:
    share = FairShare.of(Settings(shares={"lab/vision": 3.0}))
    for holder in (ANN, BOB, EVE):
        share.enrol(holder)
    share.start(ANN, share.tariff.price(8, gpu_type="A100"), 0)
    share.start(BOB, share.tariff.price(2, gpu_type="A10"), 0)
    return share


def test_who_uses_more_than_his_part_falls_behind() -> None:
    share = filled()
    assert share.factors(0) == {EVE: 1.0, ANN: 1.0, BOB: 1.0}
    assert share.factors(HOUR) == {EVE: 1.0, BOB: 2 / 3, ANN: 1 / 3}
    share.stop(ANN, share.tariff.price(8, gpu_type="A100"), HOUR)
    assert share.factors(60 * 24 * HOUR) == {ANN: 1.0, EVE: 2 / 3, BOB: 1 / 3}
    assert [(use.user, use.hours) for use in share.monthly(HOUR)] == [("bob", 2.0), ("ann", 32.0)]


def test_a_copy_knows_its_own_users_only() -> None:
    share = filled()
    share.factors(0)
    other = share.copy()
    assert other == share
    other.enrol(NEW)
    share.enrol(Holder("y", "m"))
    assert NEW in other.factors(1)
    assert NEW not in share.factors(1)
    assert other != share


def test_a_sentence_says_why_another_is_before() -> None:
    share = filled()
    standing = share.standing(HOUR)
    assert share.explain(standing, ANN, BOB) == (
        "ann (lab/vision) stands behind bob (lab/speech): at level 2, account lab/vision has LF 0.797 (75.0% of the "
        "shares, 94.1% of the use) and account lab/speech has LF 4.25 (25.0% of the shares, 5.9% of the use); ann used "
        "31.9 standard-card-hours and bob 2.0 standard-card-hours in the decayed window (half-life 7 d)."
    )
    assert share.explain(standing, ANN) == share.explain(standing, ANN, BOB)
    assert "user bob has LF 0.5 " in share.explain(standing, BOB)
    assert "user eve has LF infinite " in share.explain(standing, BOB)
    assert share.explain(standing, EVE, BOB).startswith(
        "eve (lab/speech) stands ahead of bob (lab/speech): at level 3,"
    )


def test_a_sentence_is_there_for_everybody() -> None:
    share = filled()
    standing = share.standing(HOUR)
    assert share.explain(standing, EVE).startswith("Nobody is served before eve (lab/speech): 0.0 ")
    assert share.explain(standing, NEW, ANN).startswith("n (x) has not submitted anything yet")
    assert share.explain(standing, ANN, ANN).startswith("ann (lab/vision) used 31.9 ")
    assert "level with" in share.explain(share.standing(0), ANN, BOB)
    boss = Holder("lab", "boss")
    lone = FairShare.of(Settings())
    for holder, cards in ((boss, 2), (BOB, 2), (EVE, 0)):
        lone.start(holder, lone.tariff.price(cards), 0)
    standing = lone.standing(HOUR)
    assert standing.factors == {boss: 1.0, EVE: 1.0, BOB: 1 / 3}
    assert "only the account's first shares" in lone.explain(standing, BOB, boss)


def test_two_that_differ_do_not_read_alike() -> None:
    share = FairShare.of(Settings())
    share.start(BOB, 10**9, 0)
    share.start(EVE, 10**9 + 10, 0)
    sentence = share.explain(share.standing(HOUR), EVE, BOB)
    assert "eve has LF 0.99999999 " in sentence
    assert "bob has LF 1 " in sentence
