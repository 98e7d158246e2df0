"""Prepared texts have the tokens that SentencePiece's own module gives. Argument: the program
prepare_files."""

import os
import random
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "support"))
import fabric_test  # noqa: E402

try:
    import numpy as np
    import sentencepiece
except ImportError as error:
    fabric_test.skip(error)

PROGRAM = sys.argv.pop()
WORDS = "the a rank reads sample pool of memory batch and Größe 数据 is not".split()


def text_of(generator, words):
    return " ".join(generator.choice(WORDS) for _ in range(words))


class Tokens(unittest.TestCase):
    def test_texts_become_the_numbers_of_the_model(self):
        generator = random.Random(1)
        with tempfile.TemporaryDirectory() as folder:
            source, target = os.path.join(folder, "from"), os.path.join(folder, "to")
            os.mkdir(source)
            os.mkdir(target)
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=iter([text_of(generator, 12) for _ in range(300)]),
                model_prefix=os.path.join(folder, "m"), vocab_size=38, minloglevel=2)
            model = os.path.join(folder, "m.model")
            pieces = sentencepiece.SentencePieceProcessor(model_file=model)
            texts = {"empty": b"", "bytes": bytes(range(256)), "nul": b"the \0 rank"}
            for number in range(40):
                texts[f"t{number}"] = text_of(generator, generator.randrange(200)).encode()
            for name, text in texts.items():
                with open(os.path.join(source, name), "wb") as file:
                    file.write(text)
            done = subprocess.run([PROGRAM, source, target, f"tokenise {model}"], capture_output=True,
                                  text=True, timeout=100, check=False)
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            for name, text in texts.items():
                found = np.load(os.path.join(target, name + ".npy"))
                self.assertEqual(found.dtype, np.int32)
                try:
                    wanted = pieces.encode(text.decode())
                except UnicodeDecodeError:
                    self.assertGreater(len(found), 0)
                    continue
                self.assertEqual(found.tolist(), wanted, name)
            done = subprocess.run([PROGRAM, source, target, f"tokenise {source}/t1"],
                                  capture_output=True, text=True, timeout=100, check=False)
            self.assertEqual(done.returncode, 1)
            self.assertIn("t1 is no model of SentencePiece", done.stderr)


if __name__ == "__main__":
    fabric_test.main()
