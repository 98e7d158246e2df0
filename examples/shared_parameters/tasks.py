"""Two small networks with their data: pictures of clothes, and the characters of a dictionary."""

import math
import pathlib
import sys

import torch
from torch import nn
from torch.nn import functional

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "fashion_mnist"))

WORDNET = "/usr/share/wordnet/data.noun"  # Debian's wordnet-base


class Images:
    """Fashion-MNIST and its CNN of 421,642 parameters."""

    def __init__(self):
        import fashion_mnist

        self.new_model = fashion_mnist.Cnn
        self.model = self.new_model()
        self.read = fashion_mnist.load
        self.images, self.labels = self.read("train")
        self.test = None

    def loss(self, generator, count):
        chosen = torch.randint(len(self.images), (count,), generator=generator)
        return functional.cross_entropy(self.model(self.images[chosen]), self.labels[chosen])

    @torch.no_grad()
    def held_out(self, count=1000):
        """(loss, part that is right) on the first pictures of the test set."""
        if self.test is None:
            self.test = [each[:count] for each in self.read("t10k")]
        scores = self.model(self.test[0])
        right = (scores.argmax(1) == self.test[1]).float().mean().item()
        return functional.cross_entropy(scores, self.test[1]).item(), right


class Characters:
    """The definitions of WordNet's nouns, and a transformer that foretells their next character."""

    def __init__(self, width=128, length=64):
        self.width, self.length = width, length
        self.model = self.new_model()
        try:
            lines = pathlib.Path(WORDNET).read_text("ascii", "ignore").splitlines()
        except FileNotFoundError:
            raise SystemExit(f"{WORDNET} is missing: apt install wordnet-base")
        text = "\n".join(line.rsplit("| ", 1)[-1].strip() for line in lines if not line.startswith("  "))
        self.text = torch.frombuffer(bytearray(text.encode("ascii")), dtype=torch.uint8).long()
        self.kept = len(self.text) * 95 // 100

    def new_model(self):
        layer = nn.TransformerEncoderLayer(self.width, 4, 4 * self.width, dropout=0.0, batch_first=True)
        return nn.ModuleDict({
            "characters": nn.Embedding(128, self.width),
            "positions": nn.Embedding(self.length, self.width),
            "layers": nn.TransformerEncoder(layer, 2),
            "scores": nn.Linear(self.width, 128),
        })

    def loss(self, generator, count):
        """Of windows from all but the last 5 % of the text."""
        return self._score(torch.randint(self.kept - self.length - 1, (count, 1), generator=generator))[0]

    @torch.no_grad()
    def held_out(self, count=100):
        """(loss, part that is right) on windows of the last 5 % of the text."""
        starts = torch.linspace(self.kept, len(self.text) - self.length - 1, count).long()
        loss, right = self._score(starts.unsqueeze(1))
        return loss.item(), right

    def _score(self, starts):
        windows = self.text[starts + torch.arange(self.length + 1)]
        x = self.model["characters"](windows[:, :-1]) + self.model["positions"](torch.arange(self.length))
        later = torch.full((self.length, self.length), -math.inf).triu(1)
        scores = self.model["scores"](self.model["layers"](x, later)).transpose(1, 2)
        wanted = windows[:, 1:]
        right = (scores.detach().argmax(1) == wanted).float().mean().item()
        return functional.cross_entropy(scores, wanted), right


TASKS = {"images": Images, "characters": Characters}
