"""Permute one side's values obliviously: both sides hold shares of the result, and neither side learns more.

Garimella, Mohassel, Rosulek, Sadeghian and Singh 2021 ("Private Set Operations from Oblivious Switching"). Read in this order:
``network`` (a permutation as layers of switches), ``transfers`` (an oblivious transfer for each switch), ``shuffle`` (permute and
share), ``programmed`` (a value per bin that equals the other side's if an id is common), ``equality`` (are two values equal?),
``delivery`` (rows for a side that may have some of them). ``alignment/psu_switching.py`` unites two sets with them.
"""
