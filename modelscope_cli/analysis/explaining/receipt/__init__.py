"""The receipt of an explanation: tests of a map. Pure functions over maps.

`Faithfulness(probability, image).covering(map)` returns figures by their names in a `Receipt`;
`head_randomisation` and `spearman` return one each. `judged` answers the tests, `winner_first` ranks the methods.
"""
