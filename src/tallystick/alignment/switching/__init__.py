"""Oblivious switching: one side permutes what the other holds, the two hold shares of the result, and neither learns more.

Garimella, Mohassel, Rosulek, Sadeghian and Singh 2021 ("Private Set Operations from Oblivious Switching"). Read in this order:
``network`` (a permutation as layers of switches), ``transfers`` (an oblivious transfer for each switch), ``shuffle`` (permute and
share), ``programmed`` (a value for each bin that equals the other side's where an id is common), ``equality`` (are two values
equal?), ``delivery`` (rows for a side that may have some of them). ``alignment/psu_switching.py`` unites two sets with them.
"""
