"""How long does the scan take, compared with its floor (the minimum time to move its data) and with other implementations?"""
