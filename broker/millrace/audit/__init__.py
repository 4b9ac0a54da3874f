"""The proof: what producers say they sent, what every tier says is there, and the verdict.

The modules, from pure to wired: `ranges` (sets of sequence numbers), `counts` (what a tier holds), `verdict`
(complete, incomplete or unknown), `messages` (the audit records), `store` (the auditor's database), `reader`
(counts a cluster's messages), `auditor` (applies the audit topics), `app` (the REST service), `client`.
"""
