"""Run both parties of a job on disk, a thread each, over channels in memory: for tests of what a party is sent over
many commands.
"""

import shutil
import threading
from functools import partial

from test_no_gradients import Failing
from tiny import contract_values, files_of, lay_out, seed_system

from tallystick.errors import TallystickError
from tallystick.job import predict as job_predict
from tallystick.job import process
from tallystick.job.process import run_process
from tallystick.job.versions import Versions, listed
from tallystick.network.addresses import free_port
from tallystick.network.channel import MemoryChannel, memory_channels
from tallystick.network.messages import encode
from tallystick.serving import label_party as online_label_party
from tallystick.serving import side as online_side
from tallystick.serving import version_switch
from tallystick.serving.feature_party import serve_feature_party
from tallystick.serving.label_party import serve_label_party
from tallystick.serving.side import ServingSide
from tallystick.watcher import Silent

PARTIES = ("bank", "shop")
TICKS = 2


class Sides:
    """Both parties on disk under a folder, a thread each, over channels in memory. It keeps what shop is sent in each step."""

    def __init__(self, root, patch, frames, **changes):
        values = {"training__epochs": 2, "evaluation__own_columns_baseline": False, "serving": {"ways": ["ahead"]}, **changes}
        self.job = lay_out(root, PARTIES, contract_values(PARTIES, **values), frames)
        (self.job.home("bank") / "tokens").write_text("a-token-of-some-length\n")
        self.options = {"listen": f"127.0.0.1:{free_port()}", "token_file": "tokens"}
        self.job.change("bank", weight="weight", serving=self.options)
        self.patch, self.sent, self.told, self.heard = patch, [], [], []
        self.called, self.errors, self.left = set(), {}, set()
        patch.setattr(version_switch, "LOOK_S", 0.1)
        for module in (process, job_predict, online_side):
            patch.setattr(module, "with_sessions", self.with_sessions)
        patch.setattr(online_label_party, "answer_clients", self.until_ticked)
        patch.setattr(ServingSide, "in_rounds", lambda side, work, **_: self.one_round(side, work))
        send = MemoryChannel.send

        def kept(channel, message):
            said = self.sent if channel.peer == "shop" else self.told
            said.append((type(message).__name__, bytes(encode(message))))
            send(channel, message)

        patch.setattr(MemoryChannel, "send", kept)

    def with_sessions(self, _contract, party, work, *, watcher, **_):  # noqa: ARG002
        name = party.party
        self.called.add(name)
        try:
            return work(self.channels[name], partial(self.left.add, name))
        except TallystickError as error:
            if name not in self.left:
                for channel in self.channels[name].values():
                    channel.abort(type(error).__name__)
            raise

    def one_round(self, side, work):
        self.with_sessions(side.contract, side.party, work, watcher=side.watcher)

    def until_ticked(self, _side, _server, score, *, stopped):
        """Serve without clients until the label party has told of versions a few times."""

        def watch():
            while sum(kind == "VersionsWanted" for kind, _ in self.sent) < TICKS and not stopped.wait(0.02):
                pass
            stopped.set()

        threading.Thread(target=watch, daemon=True).start()
        score()
        ticks = [place for place, (kind, _) in enumerate(self.sent) if kind == "VersionsWanted"]
        del self.sent[ticks[TICKS - 1] + 1 :]  # how many more follow depends on the machine

    def step(self, what, work):
        """Let both do their part. Keep what shop was sent (None if bank called nobody), and return bank's error."""
        to_shop, to_bank = memory_channels("bank", "shop", timeout_s=60)
        self.channels = {"bank": {"shop": to_shop}, "shop": {"bank": to_bank}}
        self.called, self.errors, self.left = set(), {}, set()
        self.sent.clear()
        self.told.clear()
        seed_system(self.patch, seed=len(self.heard))

        def one(name):
            try:
                work(name)
            except TallystickError as error:
                self.errors[name] = error
            if name == "bank" and name not in self.called:
                to_bank._inbox.put(b"")  # nobody calls, so shop stops waiting

        threads = {name: threading.Thread(target=one, args=(name,), name=f"simulate-{name}") for name in PARTIES}
        for thread in threads.values():
            thread.start()
        for thread in threads.values():
            thread.join()
        self.heard.append((what, list(self.sent) if "bank" in self.called else None))
        return self.errors.get("bank")

    def tables(self, frames):
        for name in PARTIES:
            frames[name].write_parquet(self.job.home(name) / "table.parquet")

    def run(self, what="run", *, stop_at=None, **options):
        def work(name):
            watcher = Failing(stop_at, "training") if name == "bank" and stop_at else Silent()
            run_process(*files_of(self.job, name), watcher=watcher, **options)

        return self.step(what, work)

    def predict(self, run=None):
        contract, _ = files_of(self.job, "bank")
        has_scores = PARTIES if contract.linkage.shares_scores else ("bank",)

        def work(name):
            output = self.job.home(name) / f"scores-{len(self.heard)}.csv" if name in has_scores else None
            job_predict.predict_rows(*files_of(self.job, name), table=None, output=output, run=run, watcher=Silent())

        return self.step("predict", work)

    def serve(self, *, keeps=False):
        """Serve for a while, without what an earlier session kept, because others know anyway whether there was one."""
        for name in () if keeps else PARTIES:
            shutil.rmtree(self.job.home(name) / "runs" / "serving", ignore_errors=True)

        def work(name):
            serve = serve_label_party if name == "bank" else serve_feature_party
            serve(*files_of(self.job, name), table=None, run=None, watcher=Silent())

        return self.step("serve", work)

    def promote(self, run_id):
        for name in PARTIES:
            contract, party = files_of(self.job, name)
            Versions(contract=contract, party=party).promote(run_id)

    def roll_back(self):
        for name in PARTIES:
            contract, party = files_of(self.job, name)
            Versions(contract=contract, party=party).roll_back()

    def runs(self):
        """Return the ids of shop's runs, the newest first."""
        return [each["run_id"] for each in listed(*files_of(self.job, "shop"))]
