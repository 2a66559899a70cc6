"""Follows the frames of connections: Arrow batches in, rows of tables out, with the kernels of `codec.conversation`.

frame_batch                      a batch of frames, with what several tables need of it
roles                            what each method does, as data: the others name no method
methods                          rows of table methods; which frames trackers read
channels                         the tracker of 0-8 to 0-9-1
sessions                         that of 0-10 and 1.0: performatives reads the columns it needs, session_rows makes
                                 rows of its records, addresses tells queues from exchanges
messages, properties             messages of their method, header and bodies; columns of their properties
tracker_states                   all of that between two captures, saved and restored
"""
