"""Between text and token ids: what `LanguageModel` answers, and how it is worked out for words a person reads."""
