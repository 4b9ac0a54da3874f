"""Airflow's side of Millrace: a connection, operators, a sensor and their triggers.

Starts millrace's commands and asks its services; moves no data itself and never imports Spark. Importing this
package imports nothing of Airflow, because the processes that it starts import it too.
"""
