"""Scripts of the kinds that tutorials have, for one process: fabricrun --wrap trains the same model on several ranks.

The oracle is the script itself, started without fabricrun. Tolerances are absolute, of parameters of size 0.1 to 1:
ranks add up their pieces in another order than one process does.
"""

from wrap_support import SCRIPTS, WrapCase, main


class Scripts(WrapCase):
    def test_a_plain_loop_ends_with_the_parameters_of_one_process(self):
        done = self.compare(SCRIPTS / "plain.py", 3, 2e-6)
        lines = sorted(line for line in done.splitlines() if "epoch" in line)
        # The loss that a script reads is that of the whole batch, on every rank.
        for epoch in range(3):
            self.assertEqual(len({line[4:] for line in lines if f"epoch {epoch}" in line}), 1, lines)
        self.assertEqual(len(lines), 9)

    def test_accumulated_and_clipped_gradients(self):
        self.compare(SCRIPTS / "accumulation.py", 2, 2e-5)

    def test_learning_rates_by_steps_and_by_the_training_loss(self):
        self.compare(SCRIPTS / "scheduler.py", 2, 2e-5)

    def test_mixed_precision(self):
        # bfloat16 has 8 bits: a sum in another order may round an activation's gradient to its neighbour.
        self.compare(SCRIPTS / "mixed_precision.py", 2, 2e-3)

    def test_validation_reads_the_whole_set_and_checkpoints_come_from_rank_0(self):
        done = self.compare(SCRIPTS / "validation.py", 2, 2e-6)
        self.assertEqual(done.count("validated 40 samples"), 6, done)

    def test_all_ranks_stop_early_in_the_same_epoch(self):
        done = self.compare(SCRIPTS / "early_stopping.py", 2, 2e-4)
        stopped = [line[4:] for line in done.splitlines() if "stopped after" in line]
        self.assertEqual(len(stopped), 2, done)
        self.assertEqual(len(set(stopped)), 1, done)

    def test_two_models_with_an_optimiser_each(self):
        self.compare(SCRIPTS / "adversarial.py", 2, 2e-5)

    def test_a_parameter_server_does_the_steps_of_the_optimiser(self):
        self.compare(SCRIPTS / "validation.py", 2, 2e-6, "--strategy", "parameter-server")

    def test_with_staleness_a_script_ends_with_one_model_for_all_ranks(self):
        self.wrapped(SCRIPTS / "validation.py", 2, "--strategy", "parameter-server", "--staleness", "2")
        # Not the parameters of one process, and not twice the same; but it learns what it should.
        self.assertGreater(self.load("wrapped")["accuracy"].item(), 0.8)

    def test_where_nothing_is_rounded_the_bits_are_those_of_one_process(self):
        self.compare(SCRIPTS / "exact.py", 4, 0)


if __name__ == "__main__":
    main()
