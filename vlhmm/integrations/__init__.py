"""vlhmm in the programs of others."""
