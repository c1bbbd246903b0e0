"""The receipt of an explanation: what it is held against, and where it points. Pure functions over maps.

`Faithfulness(probability, image).of(map)` and `location(map, inside)` give figures by their names in a `Receipt`;
`agreement`, `randomisation`, `spearman` (for another class) and `planted_evidence` give one or two each. `judged`
names the tests a receipt fails, `winner_first` orders the methods, `read_requirements` reads `--require`.
`EvidenceOfFolder` adds up the maps of a folder, and `Region` is where `--box` or `--mask` is for the model.
"""
