"""Wrap baseline libraries behind one interface for fair comparisons; each library is imported only when it is used."""
