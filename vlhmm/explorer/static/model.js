// What the page knows of the model, read from packed columns.

// The smallest normal number of 32 bits: p(word) may be zero by underflow.
const SMALLEST = 2 ** -126;

class ModelData {
  constructor(values) {
    Object.assign(this, values);
    const unpackAll = (columns) =>
      Object.fromEntries(
        Object.entries(columns).map(([name, column]) => [name, column.base64 === undefined ? column : unpacked(column)]),
      );
    this.states = unpackAll(values.states);
    this.words = unpackAll(values.words);
    this.tokens = unpacked(values.text.tokens).values;
    this.numKept = this.states.number.values.length;
    this.rankOf = new Map(Array.from(this.states.number.values, (state, rank) => [state, rank]));
    this.wordOf = new Map(this.words.name.map((name, word) => [name, word]));
    this.hasBlocks = this.blocks.length > 0;
    this.mostUsed = this.states.use.values[0] ?? 1;
  }

  number(rank) {
    return this.states.number.values[rank];
  }

  use(rank) {
    return this.states.use.values[rank];
  }

  block(rank) {
    return this.states.block.values[rank];
  }

  wordName(word) {
    return this.shown(this.words.name[word]);
  }

  // The words of a state: log p(word | state), log lift, and the relevance that weighs them.
  wordsOf(rank, weight, most = 10) {
    const { first_word: first, word, word_log_prob: logProbs } = this.states;
    const found = [];
    for (let place = first.values[rank]; place < first.values[rank + 1]; place += 1) {
      const logProb = logProbs.values[place];
      const logLift = logProb - Math.log(Math.max(SMALLEST, this.words.prob.values[word.values[place]]));
      const relevance = weight * logProb + (1 - weight) * logLift;
      found.push({ word: word.values[place], prob: Math.exp(logProb), lift: Math.exp(logLift), relevance });
    }
    return found.sort((one, other) => other.relevance - one.relevance).slice(0, most);
  }

  // A state in few letters.
  label(rank, most = 3) {
    return this.wordsOf(rank, 1, most)
      .filter(({ prob }, place) => place === 0 || prob >= 0.01)
      .map(({ word }) => this.wordName(word))
      .join(" ");
  }

  statesOfWord(word) {
    return entries(this.words.state, this.words.state_prob, word);
  }

  next(rank) {
    return entries(this.states.next, this.states.next_prob, rank);
  }

  previous(rank) {
    return entries(this.states.previous, this.states.previous_prob, rank);
  }

  // Places of the text that most likely came from the state, each with the words around it.
  examples(rank, around = 5) {
    return entries(this.states.example, this.states.example_prob, rank).map(([position, prob]) => {
      const words = (from, to) =>
        Array.from(this.tokens.subarray(Math.max(0, from), Math.min(this.tokens.length, to)), (word) => this.words.name[word]);
      return {
        prob,
        before: this.joinedText(words(position - around, position)),
        word: this.shown(this.words.name[this.tokens[position]]),
        after: this.joinedText(words(position + 1, position + 1 + around)),
      };
    });
  }

  joinedText(names) {
    return this.joined ? spelled(names.join(""), this.byte_level) : names.join(" ");
  }

  // A token as people write it, without the space before it.
  shown(name) {
    const text = this.joined ? spelled(name, this.byte_level).trim() : name;
    return text === "" ? "␣" : text;
  }

  // Words whose name holds `text`, whole matches and beginnings first; frequent ones first among these.
  wordsLike(text, most = 8) {
    const wanted = text.toLowerCase();
    const found = [];
    this.words.name.forEach((_, word) => {
      const name = this.wordName(word).toLowerCase();
      const at = name.indexOf(wanted);
      if (at >= 0) found.push([name === wanted ? 0 : at === 0 ? 1 : 2, -this.words.prob.values[word], word]);
    });
    found.sort((one, other) => one[0] - other[0] || one[1] - other[1]);
    return found.slice(0, most).map(([, , word]) => word);
  }

  // Of each block, most frequent first.
  wordsByBlock() {
    const found = new Map(this.blocks.map(({ block }) => [block, []]));
    this.words.block.values.forEach((block, word) => found.get(block)?.push(word));
    const { values } = this.words.prob;
    found.forEach((words) => words.sort((one, other) => values[other] - values[one]));
    return found;
  }

  statesOfBlock(block) {
    const found = [];
    this.states.block.values.forEach((of, rank) => {
      if (of === block) found.push(rank);
    });
    return found;
  }
}
