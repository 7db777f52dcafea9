"""A time limit in minutes ends training with the epoch in which it is passed, and never ends a refit."""

from loops import Setting, assert_same_bits, training, weights_of

LONG_OVER, NEVER_OVER = 1e-9, 1e6


def test_training_ends_with_the_epoch_in_which_the_minutes_are_over(tmp_path):
    setting = Setting(parties=("club", "shop"), validation=40)
    modules, (label, *others) = setting.train(training(epochs=40, patience=3, minutes=LONG_OVER), tmp_path / "over")
    assert (label.epoch, label.stopped, len(label.history)) == (1, True, 1)
    assert {(each.epoch, each.step, each.stopped) for each in others} == {(1, label.step, True)}
    exact, _ = setting.train(training(epochs=1), tmp_path / "exact")
    assert_same_bits(weights_of(modules), weights_of(exact))


def test_minutes_that_are_not_over_change_nothing(tmp_path):
    setting = Setting(validation=40)
    bounded, (state, *_) = setting.train(training(patience=3, minutes=NEVER_OVER), tmp_path / "bounded")
    free, (other, *_) = setting.train(training(patience=3), tmp_path / "free")
    assert_same_bits(weights_of(bounded), weights_of(free))
    assert (state.epoch, state.best_step, state.best_loss) == (other.epoch, other.best_step, other.best_loss)


def test_a_refit_takes_the_passes_that_were_best_however_long(tmp_path):
    setting = Setting(validation=40)
    _, (label, feature) = setting.train(training(epochs=40, patience=3, minutes=LONG_OVER), tmp_path, refit=True)
    assert (label.first_epochs, label.refit_epochs, label.epoch) == (1, 1, 2)
    assert label.step == feature.step == setting.schedule.steps_per_epoch + label.refit_steps
