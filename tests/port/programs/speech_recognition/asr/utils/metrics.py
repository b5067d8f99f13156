import numpy as np


def distance(a, b):
    """The edits that make one sequence of the other."""
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        before, row[0] = row[0], i
        for j, y in enumerate(b, 1):
            before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (x != y))
    return row[-1]


def cer(out_string, label):
    label = label.replace(' ', '')
    return distance(out_string.replace(' ', ''), label) / max(len(label), 1)


def wer(out_string, label):
    return distance(out_string.split(), label.split()) / max(len(label.split()), 1)


def greedy_decoder_batch(probs, vocabulary, blank=0):
    results = []
    for best in np.argmax(probs, axis=-1):
        changed = [index for i, index in enumerate(best) if i == 0 or index != best[i - 1]]
        text = ''.join(vocabulary[index] for index in changed if index != blank)
        results.append(text.replace('<space>', ' '))
    return results


def labels_to_string(labels, vocabulary, eos, blank=0):
    return [''.join(vocabulary[i] for i in label if i not in (blank, eos)) for label in labels.tolist()]
