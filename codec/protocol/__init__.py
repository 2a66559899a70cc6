"""What the five versions say, as data, and the interpreters of their values.

`versions` and `rows` say what a row has, `spec` has the methods of each version as facts. Each family has three
modules, which name the same things:

    *_tables       its methods, controls or performatives as arrays for kernels
    *_values       their arguments, and the properties of messages -> VARIANT
    *_detection    whether bytes can be a frame of it

and the classic one `classic_field_table`, of which each broker has a dialect; 1.0 also `v1_0_contents` (requests,
tokens and batches in messages). `frame_search` finds the next frame after a loss, `disclosure` what is secret.
"""
