"""Compare the search with that of TVM MetaSchedule on equal programs and numbers of trials."""
