"""Sessions: by an id or by a token, from any worker."""

from __future__ import annotations

import base64

from unit.scheduling.world import PROFILES, World, chat
from zerohop_picker.scheduling_contract import Decision

SESSION = (PROFILES / "session.yaml").read_text()


def test_a_session_id_stays_on_its_endpoint_from_any_worker_until_its_ttl(world: World) -> None:
    for name in "abcd":
        world.add(name)
    world.publish()
    one, two = world.scheduler(SESSION, worker="w1", seed=1), world.scheduler(SESSION, worker="w2", seed=2)
    asked = {"x-session-id": "s-1"}
    home = world.pick(one, chat(headers=asked))
    world.change(home, waiting=4.0)
    world.publish()
    assert {world.pick(two, chat(headers=asked)) for _ in range(4)} == {home}
    world.now_ns += 301_000_000_000
    for name in "abcd":
        world.change(name, waiting=9.0 if name == home else 0.0)
    world.publish()
    assert world.pick(one, chat(headers=asked)) != home


def test_a_session_whose_endpoint_is_gone_moves(world: World) -> None:
    world.add("a")
    world.add("b", waiting=1.0)
    world.publish()
    scheduler = world.scheduler(SESSION)
    asked = {"x-session-id": "s"}
    assert world.pick(scheduler, chat(headers=asked)) == "a"
    row = world.rows.pop("a")
    world.writer.remove_endpoint("a")
    del world.cold["endpoints"][row]
    world.publish()
    assert world.pick(scheduler, chat(headers=asked)) == "b"
    world.add("c")
    world.change("b", waiting=2.0)
    world.publish()
    assert world.pick(scheduler, chat(headers=asked)) == "b"


def test_a_session_token_names_its_endpoint_and_is_given_back(world: World) -> None:
    world.add("a")
    world.add("b", waiting=3.0)
    world.publish()
    scheduler = world.scheduler((PROFILES / "session-token.yaml").read_text())
    token = base64.b64encode(b"default/b").decode()
    decision = scheduler.schedule(chat(headers={"x-session-token": token}), world.now_ns)
    assert isinstance(decision, Decision)
    assert world.name_of(decision.endpoints[0]) == "b"
    assert decision.response_headers == (("x-session-token", token.encode()),)
    for junk in ("%%%", "", base64.b64encode(b"\xff").decode(), base64.b64encode(b"default/nobody").decode()):
        assert world.pick(scheduler, chat(headers={"x-session-token": junk})) == "a"
