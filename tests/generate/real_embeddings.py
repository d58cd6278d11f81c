"""Writes the vectors that transformers computes with a real embedding model, for `tests/embedding_models.rs`.

    python tests/generate/real_embeddings.py FOLDER      (needs torch, transformers; FOLDER as of tests/fetch_models.py)
"""

import sys
from pathlib import Path

import torch
import transformers

import oracle

TEXTS = (
    "The harbour was quiet before the storm.",
    "Ein Café in München, naïve 東京!",
    "How do I reset my password?",
    "counting what is missing is harder than that; " * 30,
)


@torch.inference_mode()
def main(folder: Path) -> None:
    path = folder / "all-MiniLM-L6-v2"
    tokenizer = transformers.AutoTokenizer.from_pretrained(path)
    model = transformers.AutoModel.from_pretrained(path).to(torch.float32).eval()
    texts = []
    for text in TEXTS:
        hidden = model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0].double().mean(dim=0)
        texts.append({"text": text, "vector": [oracle.rounded(value) for value in (hidden / hidden.norm()).tolist()]})
    target = Path(__file__).resolve().parent.parent / "fixtures" / "real" / "all-minilm-l6-v2.json"
    oracle.write_json(target, {"oracle": f"transformers {transformers.__version__} BertModel, float32", "texts": texts})


if __name__ == "__main__":
    main(Path(sys.argv[1]))
