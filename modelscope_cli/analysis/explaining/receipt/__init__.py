"""The receipt of an explanation: tests of a map, and where it points. Pure functions over maps.

`Faithfulness(probability, image).covering(map)` and `border_share(map)` return figures by their names in a
`Receipt`; `agreement`, `head_randomisation` and `spearman` return one each. `judged` answers the tests,
`winner_first` ranks the methods, `read_requirements` parses `--require`. `EvidenceOfFolder` sums the maps of a
folder.
"""
