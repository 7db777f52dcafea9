"""Evaluate an oblivious pseudorandom function by oblivious transfer: few public-key operations, then only symmetric ones.

Kolesnikov, Kumaresan, Rosulek and Trieu 2016 ("Efficient Batched Oblivious PRF with Applications to Private Set Intersection").
Read in this order: ``base_transfers`` (512 transfers on ristretto255), ``extension`` (from these to a function for each bin),
``codes`` (ids as code words and bins), ``cuckoo`` (one id to a bin). ``alignment/psi_oprf.py`` intersects two sets with them.
"""
