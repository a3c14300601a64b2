"""The suite against backends that are wrong on purpose: who judges the judge."""
