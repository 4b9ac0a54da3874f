"""The proof that nothing was lost: who says what was produced, who counts what arrived, who judges.

Never reads a warehouse: it believes the reports of loads.
"""
