"""The arithmetic of the score, on days that are counted by hand."""

from gpuguard.simulator.fleet.causes import Signature
from gpuguard.simulator.fleet.faults import DAY, HOUR, Fault
from gpuguard.simulator.fleet.score import FALSE_CAUSES, Score, Seen


def fault(at: float, signature: Signature = "lost", cause: str = "faulty_gpu", node: int = 0) -> Fault:
    return Fault(id=0, node=node, at=at, cause=cause, signature=signature, gpu=0, down=HOUR)


def test_time_is_shared_out_by_how_nodes_stood() -> None:
    score = Score(2, 8, 10 * DAY)
    score.stands(0, 1 * DAY, "spoiled")
    score.stands(0, 1.5 * DAY, "drained, broken")
    score.stands(0, 2 * DAY, "in service")
    score.stands(1, 9 * DAY, "drained for nothing")
    found = score.figures()
    assert found["node_days"] == 20
    assert found["availability"] == (20 - 1 - 1) / 20
    assert found["lost_gpu_hours_by"] == {"drained for nothing": 192.0, "drained, broken": 96.0, "spoiled": 96.0}
    assert found["lost_gpu_hours"] == 384.0


def test_probation_is_seven_days_after_a_repair() -> None:
    score = Score(2, 8, 20 * DAY)
    score.stands(0, 1 * DAY, "drained, broken")
    score.hit(0, 1.5 * DAY)
    score.stands(0, 2 * DAY, "in service")
    score.hit(0, 5 * DAY)
    score.hit(0, 10 * DAY)
    score.hit(1, 5 * DAY)
    score.stands(1, 3 * DAY, "drained by people")
    score.stands(1, 4 * DAY, "in service")
    assert (score.on_probation, score.while_out) == (1, 1)
    found = score.figures()["probation"]
    assert found["node_time_share"] == round(7 / 40, 4)


def test_a_node_that_came_back_before_the_first_day_is_on_probation_still() -> None:
    score = Score(1, 8, 10 * DAY)
    score.returned(0, -2 * DAY)
    score.hit(0, 4 * DAY)
    score.hit(0, 6 * DAY)
    assert score.on_probation == 1
    assert score.figures()["probation"]["node_time_share"] == 0.5


def test_faults_are_counted_by_what_can_be_known_of_them() -> None:
    score = Score(1, 8, 10 * DAY)
    found, held, missed, alone = (Seen(fault(DAY)) for _ in range(4))
    missed.ran = True
    found.asked, held.asked, held.held = DAY + 2.0, DAY + 3.0, DAY + 3.1
    late = Seen(fault(10 * DAY - 60.0))
    covered = Seen(fault(2 * DAY))
    covered.asked, covered.covered = 2 * DAY + 500.0, True
    warned = Seen(fault(DAY, "hot", "gpu_thermal"))
    warned.watched = True
    unseen, program = Seen(fault(DAY, "unseen", "ssd")), Seen(fault(DAY, "program", "software_bug"))
    score.faults = [found, held, missed, alone, late, covered, warned, unseen, program]
    told = score.figures()
    assert (told["faults"], told["evident"], told["handed_over"]) == (9, 6, 1)
    assert (told["missed"], told["no_agent"]) == (1, 1)
    assert told["doubtful"] == {"faults": 1, "watched": 1, "drained": 0}
    assert (told["unseen"], told["program"]) == ({"ssd": 1}, 1)
    assert told["detection_s"] == {"count": 2, "p50": 2.0, "p99": 3.0, "max": 3.0}


def test_every_cause_of_a_false_drain_is_told() -> None:
    score = Score(1, 8, 1000 * DAY)
    score.false["flap"] += 2
    told = score.figures()
    assert told["false_drains_by_cause"] == {cause: 2 * (cause == "flap") for cause in FALSE_CAUSES}
    assert (told["false_drains"], told["false_drains_per_1000_node_days"]) == (2, 2.0)
